"""A head as a Gaussian channel: what the moments of its queries and keys say of its attention."""
