"""``python -m hurray_arrow``, which is the command ``hurray-arrow``."""

from hurray_arrow.cli import main

if __name__ == "__main__":
    main()
