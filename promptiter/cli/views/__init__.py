"""Views: render plain data as text for people or as JSON for machines."""
