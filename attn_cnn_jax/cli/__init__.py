"""The command `attn-cnn`: one file per subcommand, each with `EXAMPLE`, `add_arguments(parser)` and `run(args)`."""
