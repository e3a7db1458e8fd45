"""What serves papers and benchmarks and no device needs: ``paper`` (tables and figures), ``theory``, ``bench``."""
