// What the tests ask of a page that a browser shows. Each function gives data; tests judge it.
"use strict";

const look = {
  // How far the page, and what sticks out of it, is wider than the window.
  width() {
    const { scrollWidth, clientWidth } = document.documentElement;
    return { page: scrollWidth, window: clientWidth };
  },

  // Whether something in the page's flow is cut off at the right edge, for paper doesn't scroll.
  cut() {
    const edge = document.documentElement.clientWidth + 0.5;
    const found = [];
    for (const one of document.querySelectorAll("main :not(.unseen)")) {
      const box = one.getBoundingClientRect();
      const scrolls = one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0;
      const clips = scrolls && getComputedStyle(one).overflowX !== "visible";
      if ((box.width > 0 && box.right > edge) || clips) {
        found.push(look.name(one));
      }
    }
    return found;
  },

  name(element) {
    const text = (element.textContent ?? "").trim().replace(/\s+/g, " ").slice(0, 60);
    return `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") ?? ""}"> ${text}`;
  },

  formulas() {
    return Array.from(document.querySelectorAll("math"), (math) => {
      const { width, height } = math.getBoundingClientRect();
      const style = getComputedStyle(math);
      return {
        alttext: math.getAttribute("alttext") ?? "",
        display: style.display,
        size: parseFloat(style.fontSize),
        width,
        height,
        rows: math.querySelectorAll("mtr").length,
        fractions: Array.from(math.querySelectorAll("mfrac"), (one) => {
          const box = one.getBoundingClientRect();
          return { height: box.height, size: parseFloat(getComputedStyle(one).fontSize) };
        }),
      };
    });
  },

  links() {
    return Array.from(document.querySelectorAll("a[href]"), (a) => ({
      href: a.href,
      rel: a.rel.split(" "),
      text: a.textContent.trim(),
    }));
  },

  ids() {
    return Array.from(document.querySelectorAll("[id]"), (one) => one.id);
  },

  // The ratio of WCAG 2 for each piece of text, in a picture too.
  contrasts() {
    const paper = look.colour(getComputedStyle(document.body).backgroundColor);
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const element = texts.currentNode.parentElement;
      const drawn = element.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true });
      if (!texts.currentNode.data.trim() || !drawn || element.closest("script, title, desc")) {
        continue;
      }
      const style = getComputedStyle(element);
      const picture = element.closest("svg");
      const ink = look.colour(picture ? style.fill : style.color);
      const below = picture ? look.behind(element, picture) : look.ground(element);
      found.push({
        text: texts.currentNode.data.trim().slice(0, 40),
        of: look.name(element),
        link: element.closest("a") !== null,
        picture: picture !== null,
        ratio: look.ratio(look.over(ink, look.over(below, paper)), look.over(below, paper)),
      });
    }
    return { paper, ink: look.colour(getComputedStyle(document.body).color), found };
  },

  // "rgb(1, 2, 3)" and "rgba(1, 2, 3, 0.5)", which is how computed styles write a colour.
  colour(text) {
    const found = /^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/.exec(text);
    if (found === null) {
      throw new Error(`no colour: ${text}`);
    }
    return [Number(found[1]), Number(found[2]), Number(found[3]), Number(found[4] ?? 1)];
  },

  over([r, g, b, alpha], below) {
    const mix = (one, other) => one * alpha + other * (1 - alpha);
    return [mix(r, below[0]), mix(g, below[1]), mix(b, below[2]), 1];
  },

  ground(element) {
    for (let one = element; one !== null; one = one.parentElement) {
      const colour = look.colour(getComputedStyle(one).backgroundColor);
      if (colour[3] > 0) {
        return colour;
      }
    }
    return [255, 255, 255, 1];
  },

  // The last filled rectangle drawn before this text and under its middle.
  behind(text, picture) {
    const box = text.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    let found = look.ground(picture.parentElement);
    for (const one of picture.querySelectorAll("rect")) {
      const at = one.getBoundingClientRect();
      const before = one.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      const under = at.left <= x && x <= at.right && at.top <= y && y <= at.bottom;
      const fill = getComputedStyle(one).fill;
      if (before && under && fill !== "none") {
        found = look.over(look.colour(fill), found);
      }
    }
    return found;
  },

  ratio(one, other) {
    const channel = (value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    };
    const luminance = ([r, g, b]) =>
      0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  },

  // The height in pixels that the letters of each text in a picture really have.
  lettering() {
    return Array.from(document.querySelectorAll("svg text"), (text) => ({
      text: text.textContent,
      size: parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a,
    }));
  },

  // Those of the elements that a reader doesn't see: closed away, not displayed or without area.
  hidden(selector) {
    const seen = (one) =>
      one.checkVisibility({ checkVisibilityCSS: true }) && one.getClientRects().length > 0;
    const every = Array.from(document.querySelectorAll(selector));
    return { of: every.length, names: every.filter((one) => !seen(one)).map(look.name) };
  },

  focus() {
    const element = document.activeElement;
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    return {
      name: look.name(element),
      text: element.textContent.trim(),
      id: element.id,
      tag: element.tagName.toLowerCase(),
      outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
      area: [box.width, box.height],
      inside: box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth,
    };
  },
};
