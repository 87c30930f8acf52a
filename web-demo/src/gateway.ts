/**
 * The gateway's demo routes: access tokens, its state, and faults on sockets.
 */

/** The hub of the demo page. */
export interface Negotiated {
  url: string;
  hub: string;
  userId: string;
}

export interface GatewayStatus {
  /** Differs after each start of the process. */
  boot: string;
  /** The process id, as the log has it. */
  process: number;
  store: "disk" | "memory";
  durability: "sync" | "os" | "memory";
  canRestart: boolean;
  version: string;
}

export type SocketFault = "cut" | "stall" | "lose-next-ack";

export async function negotiate(user: string): Promise<Negotiated> {
  const response = await post("demo/negotiate", { user });
  return response.json();
}

export async function gatewayStatus(): Promise<GatewayStatus> {
  const response = await fetch(routeUrl("demo/status"), { cache: "no-store" });
  if (!response.ok) throw new Error(`the gateway answered ${response.status}`);
  return response.json();
}

/** Strikes the socket of a session. `milliseconds` is how long a stall lasts. */
export async function strike(fault: SocketFault, connectionId: string, milliseconds?: number): Promise<void> {
  await post(`demo/faults/${fault}`, { connectionId, ...(milliseconds !== undefined && { milliseconds }) });
}

/** Kills the gateway's process; its supervisor starts it again. */
export async function restartGateway(): Promise<void> {
  await post("demo/restart", {});
}

/** The routes are beside the page, also where that is under a path of its host. */
function routeUrl(path: string): URL {
  return new URL(path, document.baseURI);
}

async function post(path: string, body: object): Promise<Response> {
  const headers = { "content-type": "application/json" };
  const response = await fetch(routeUrl(path), { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`the gateway answered ${response.status}`);
  return response;
}
