"""From policies that fall due to rows that are gone."""
