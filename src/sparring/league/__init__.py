"""Who plays whom, how good each is, and who becomes champion."""
