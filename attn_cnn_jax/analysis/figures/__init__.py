"""The paper's figures from run directories; one module a family, `__main__` is the command."""
