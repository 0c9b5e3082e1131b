"""`python -m anomalyncd`, and `torchrun … -m anomalyncd` for several processes."""

from .cli import main

if __name__ == "__main__":
    main()
