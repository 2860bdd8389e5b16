"""Planning tasks as Markov decision processes of one shape."""
