"""What may be said of data: comparison with a law, nulls with p-values, denoising."""
