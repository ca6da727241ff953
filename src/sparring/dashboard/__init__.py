"""What is seen: the pages, the API that they poll, and the JavaScript client."""
