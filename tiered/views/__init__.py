"""Build compacted views; `tiered.read.view_reader` reads them."""
