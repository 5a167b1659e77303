"""What network servers share: users, tokens, TLS, limits, audit and the HTTP socket."""
