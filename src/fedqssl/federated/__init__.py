"""The two sides of Algorithm 1, client and server, as functions of bytes; the algorithms; how random numbers are derived."""
