"""The two roles of Algorithm 1, client and server, as functions of bytes; algorithms; what their randomness derives from."""
