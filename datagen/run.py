"""`python datagen/run.py dist=normal`: random arrays → a sharded data set (conf/datagen.yaml)."""

from automap_models.datagen.command import main

if __name__ == "__main__":
    main()
