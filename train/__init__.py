"""From a data set to a Rainbow checkpoint to an ONNX policy."""
