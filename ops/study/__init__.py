"""Several runs of one recipe: methods side by side (`fedil compare`), or settings (`fedil sweep`)."""
