"""The frameworks under test, behind one protocol, each imported only when it is opened."""
