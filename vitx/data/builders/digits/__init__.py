"""The 1,797 handwritten digits in scikit-learn as a TFDS set."""
