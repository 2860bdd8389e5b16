"""`python train/run.py`: a launcher that works from a checkout once the package is installed.

On a terminal it says at once what the first seconds go into: torch and lightning are imported after that.
"""

import sys

if __name__ == "__main__":
    if sys.stdout.isatty():
        print("loading torch and lightning …", flush=True)
    from automap_models.train.main import main

    main()
