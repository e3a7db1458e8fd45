"""Code for papers and benchmarks that no device needs: ``paper`` (tables and figures), ``theory``, ``bench``."""
