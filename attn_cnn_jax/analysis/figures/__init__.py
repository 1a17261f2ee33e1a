"""The paper's figures from run directories; one module per family."""
