"""A step of a whole model of Hugging Face: the model, who patches it, and what is checked of it."""
