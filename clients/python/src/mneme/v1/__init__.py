"""Messages and stubs of the wire package mneme.v1, generated from the server's proto files."""
