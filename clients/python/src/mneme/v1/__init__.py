"""Messages of the wire package mneme.v1, made from the server's proto files."""
