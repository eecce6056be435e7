// Shows the notes of dots and cells; they are put in as text, never as markup.
(() => {
  const note = document.getElementById("note");
  const show = (event) => {
    const text = event.target.dataset && event.target.dataset.note;
    if (!text) { note.style.display = "none"; return; }
    note.textContent = text;
    note.style.display = "block";
    const room = document.documentElement.clientWidth - note.offsetWidth - 8;
    note.style.left = Math.max(4, Math.min(event.pageX + 12, room)) + "px";
    note.style.top = (event.pageY + 14) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
})();
