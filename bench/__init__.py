"""What Lapse costs and what it saves, against everything a user would pick instead: `make bench`."""
