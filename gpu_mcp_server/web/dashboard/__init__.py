"""The page to look at: who holds what, what was tried, how it went; through the services, as its visitor may."""
