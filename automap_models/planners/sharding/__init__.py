"""Which dimensions of a model's variables to partition along the axes of a mesh."""
