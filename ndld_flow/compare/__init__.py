"""Two models or runs compared, and one model measured, without a recipe of the user's."""
