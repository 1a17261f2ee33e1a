// The live figure says how high it is, so that its frame needs no scroll bar at any width.
addEventListener("message", ({ source, data }) => {
  for (const frame of document.querySelectorAll("iframe.live")) {
    if (frame.contentWindow === source && Number.isFinite(data?.height)) frame.style.height = `${Math.ceil(data.height)}px`;
  }
});
