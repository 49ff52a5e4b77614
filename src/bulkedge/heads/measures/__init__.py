"""Numbers that say what attention matrices do, and the kinds of heads that follow from them."""
