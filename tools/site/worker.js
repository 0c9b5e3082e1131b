// Browsers start no worker from a file on disk, and the search of the site is one. Opened from disk it runs in a frame instead.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...names) =>
        names.reduce((before, name) => before.then(() => this.load(name)), Promise.resolve());
      this.load(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }
    load(url) {
      const page = this.frame.contentDocument;
      const script = page.createElement("script");
      script.src = new URL(url, location.href);
      return new Promise((done, failed) => {
        script.onload = done;
        script.onerror = failed;
        page.body.append(script);
      });
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
  }
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
