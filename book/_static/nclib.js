// The excerpts of search results come from a script that holds the text of all pages, and not from the pages: opened
// from a file, a page may not read its neighbours.
if (DOCUMENTATION_OPTIONS.pagename === "search") {
  const script = document.createElement("script");
  const loaded = new Promise((done) => { script.onload = done; });
  script.src = "_static/bodies.js";
  document.head.append(script);
  window.fetch = async (page) => {
    await loaded;
    const body = window.nclibBodies[page.replace("./", "")] ?? "";
    return new Response(`<div role="main">${body}</div>`);
  };
}
