/**
 * Which tab owns a session. Duplicating a tab copies its sessionStorage, and two tabs on one session would take each
 * other's messages. The owner holds a lock named after the session as long as its page lives. Knows no sockets.
 */

/** How long a page waits for a page before it to let go, when nobody says that it is alive. In milliseconds. */
const PATIENCE_MS = 3_000;

const CHANNEL = "oncewire-sessions";

type Call = { asks: string } | { owned: string };

export class TabOwnership {
  readonly #locks: LockManager | undefined;
  #release: (() => void) | undefined;

  constructor(locks: LockManager | undefined) {
    this.#locks = locks;
  }

  /**
   * Becomes the owner of a session. False when another page owns it, or when the browser has no locks and nobody can
   * tell.
   */
  async claim(connectionId: string): Promise<boolean> {
    this.release();
    if (this.#locks === undefined) return false;
    const locks = this.#locks;
    const channel = new BroadcastChannel(CHANNEL);
    const isOwner = await new Promise<boolean>((resolve) => {
      const request = new AbortController();
      let isDecided = false;
      const decide = (owns: boolean) => {
        isDecided = true;
        resolve(owns);
      };
      const giveUp = () => {
        if (isDecided) return;
        decide(false);
        request.abort();
      };
      const hold = () => {
        // Chromium may miss an abort that comes early; the lock is let go then as soon as it is granted.
        if (isDecided) return;
        decide(true);
        return new Promise<void>((release) => this.#own(connectionId, release));
      };
      locks.request(`oncewire session ${connectionId}`, { signal: request.signal }, hold).catch(giveUp);
      channel.onmessage = ({ data }: MessageEvent<Call>) => {
        if ("owned" in data && data.owned === connectionId) giveUp();
      };
      channel.postMessage({ asks: connectionId } satisfies Call);
      setTimeout(giveUp, PATIENCE_MS);
    });
    channel.close();
    return isOwner;
  }

  release(): void {
    this.#release?.();
    this.#release = undefined;
  }

  #own(connectionId: string, release: () => void): void {
    const channel = new BroadcastChannel(CHANNEL);
    channel.onmessage = ({ data }: MessageEvent<Call>) => {
      if ("asks" in data && data.asks === connectionId) channel.postMessage({ owned: connectionId } satisfies Call);
    };
    this.#release = () => {
      channel.close();
      release();
    };
  }
}
