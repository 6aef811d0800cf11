"""From a plan to tokens: what ops mean in torch, models, views, capture and the loop."""
