// Package hostlocal gives routed pods their addresses out of the node's
// podCIDRs. Choosing an address and the format on disk are those of the CNI
// reference plugin host-local, used as a library: one file per address, named
// by the address, holding "CONTAINERID\r\nIFNAME". Everything in the directory
// whose name is an address is ours.
//
// What this package adds to the library:
//
//   - Leases die with the boot. The file boot-id says which boot the leases are
//     of. At Open with another boot ID all leases go first and the file is
//     written last, so that a crash in between only means doing it again.
//   - Both families or none.
//   - A file is created empty and filled by a second system call. A process
//     killed in between leaves an empty file, an address that nobody would ever
//     get or free. Each writer holds the lock of the directory, so who holds
//     the lock and sees an empty file knows that its writer is dead and that no
//     pod has the address, and removes it.
//   - A file with other contents than a lease may be the lease of a living pod.
//     Its address is not handed out; the file is listed with the owner
//     Unreadable until somebody releases that, or reserves the address.
//   - Goroutines of one process exclude each other. The library's file lock
//     does not do that: they share one open file.
package hostlocal
