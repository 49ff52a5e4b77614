"""Laws of softmax attention, one file each."""
