// Package hostlocal allocates addresses of the node's podCIDRs to routed pods. The choice of an address and the format
// on disk are those of the CNI reference plugin host-local, used as a library: one file per address, named by the
// address, containing "CONTAINERID\r\nIFNAME". Everything in the directory whose name is an address belongs to
// Fairlead.
//
// What this package adds to the library:
//
//   - Leases are valid for one boot. The file boot-id has the boot ID that they belong to. When Open finds another one,
//     it removes all leases first and writes the file last, so that after a crash in between the removal is repeated.
//     Nothing is leased before the file is written; on a full disk that is retried at each request.
//   - Both families or none.
//   - A file is created empty and filled by a second system call. A process killed in between leaves an empty file: an
//     address that would never be allocated or released again. Writers hold the lock of the directory, so the holder of
//     the lock that sees an empty file knows that its writer is dead and that no pod has the address, and removes it.
//   - A file that is not a valid lease may be the lease of a running pod. Its address is not allocated; the file is
//     listed with the owner Unreadable until that is released, or the address is reserved.
//   - Leases are read again only if the times of their directory have changed, as after a change by another process. A
//     change within the same tick of the kernel's clock, or of the content of a file, is noticed by Store.Leases, which
//     the reconciler calls. No address is leased twice for that: a lease's file is created exclusively.
//   - Goroutines of one process exclude each other. The library's file lock does not do that: they share one open file.
package hostlocal
