"""The paper's theorem: convolutions to attention, attention to convolutions, and the errors of both."""
