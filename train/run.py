"""`python train/run.py`: a launcher that works from a checkout once the package is installed."""

from automap_models.train.main import main

if __name__ == "__main__":
    main()
