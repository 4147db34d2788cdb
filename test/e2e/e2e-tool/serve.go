package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func serveCommand() *cobra.Command {
	var tcp, udp string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer HTTP with this pod's name and both addresses, and every UDP datagram with the name and the datagram",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, err := os.Hostname()
			if err != nil {
				return err
			}
			g, ctx := errgroup.WithContext(cmd.Context())
			g.Go(func() error { return serveHTTP(ctx, tcp, name) })
			g.Go(func() error { return serveUDP(ctx, udp, name) })
			return g.Wait()
		},
	}
	cmd.Flags().StringVar(&tcp, "tcp", ":8080", "address for HTTP")
	cmd.Flags().StringVar(&udp, "udp", ":5353", "address for UDP")
	return cmd
}

// serveHTTP answers "NAME LOCAL REMOTE".
func serveHTTP(ctx context.Context, addr, name string) error {
	server := &http.Server{Addr: addr, ReadHeaderTimeout: 5 * time.Second}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		fmt.Fprintf(w, "%s %s %s\n", name, local, r.RemoteAddr)
	})
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveUDP answers "NAME DATAGRAM".
func serveUDP(ctx context.Context, addr, name string) error {
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			_, _ = conn.WriteTo(fmt.Appendf(nil, "%s %s", name, buf[:n]), from) // clients retry
		}
	}
}
