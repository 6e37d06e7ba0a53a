// Filters the list that the page already has: without this it is there in full.
"use strict";

const field = document.getElementById("find");
const found = document.getElementById("found");
// Any dash is found by a hyphen, quantisation by quantization: both sides are read alike.
const folded = (text) =>
  text.toLowerCase().replace(/[\u2010-\u2015]/g, "-").replace(/iz/g, "is");

const entries = Array.from(document.querySelectorAll("#entries > li"), (element) => ({
  element,
  text: folded(element.textContent),
}));

// The words of the query, in any order and any case.
function filter() {
  const words = folded(field.value).split(/\s+/).filter(Boolean);
  let count = 0;
  for (const { element, text } of entries) {
    const matches = words.every((word) => text.includes(word));
    element.hidden = !matches;
    count += matches;
  }
  found.textContent = words.length
    ? `${count} of ${entries.length} entries match`
    : `${entries.length} entries`;
}

field.value = new URLSearchParams(location.search).get("q") ?? "";
field.addEventListener("input", filter);
field.form.addEventListener("submit", (event) => event.preventDefault());
filter();
