"""What a trained model can do: passkey retrieval, and perplexity by position."""
