"""``python -m fedqssl`` is the command ``fedqssl``."""

from fedqssl.cli.main import main

if __name__ == "__main__":
    main()
