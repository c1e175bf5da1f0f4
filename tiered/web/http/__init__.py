"""HTTP for pages and metrics: `server` has the two servers, `serving` runs uvicorn in a thread."""
