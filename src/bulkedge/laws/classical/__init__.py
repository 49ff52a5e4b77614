"""Laws of the classical literature, one file a family, and free convolution of any two laws."""
