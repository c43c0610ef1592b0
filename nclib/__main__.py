"""``python -m nclib`` is the command ``nclib``."""

from nclib.cli import main

if __name__ == "__main__":
    main()
