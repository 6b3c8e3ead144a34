"""MXNet's library and its arrays, dense and of rows, as a store uses them; nothing here knows of stores."""
