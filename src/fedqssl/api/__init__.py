"""What ``import fedqssl`` offers. Nothing heavy is imported before it is used."""
