package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
)

// The benchmark has one database for each kind of table, so that the server's
// statistics of a database are those of one contender.
const (
	rivalsDB       = "dipwell_bench_rivals"
	fastDB         = "dipwell_bench_fast"   // dipwell with unlogged tables
	loggedDB       = "dipwell_bench_logged" // dipwell with logged tables
	loggedRivalsDB = "dipwell_bench_rivals_logged"
	freshDB        = "dipwell_bench_fresh" // for scenarios that need new tables
	verbsDB        = "dipwell_bench_verbs"
	freshToo       = "dipwell_bench_fresh_too"
)

// create makes an empty database.
func (b *bench) create(ctx context.Context, name string) (dsn string, err error) {
	b.created = append(b.created, name)
	err = withConn(ctx, b.admin, func(c *conn) error {
		if err := c.once(ctx, "drop database if exists "+name+" with (force)"); err != nil {
			return err
		}
		return c.once(ctx, "create database "+name)
	})
	if err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	return inDatabase(b.admin, name)
}

// roles are the roles that dipwell's migrations add to the whole server.
var roles = []string{"dipwell_app", "dipwell_service", "dipwell_admin"}

// noteRoles records which roles existed before.
func (b *bench) noteRoles(ctx context.Context) error {
	for _, role := range roles {
		there, err := query(ctx, b.admin, "select count(*) from pg_roles where rolname = '"+role+"'")
		if err != nil {
			return err
		}
		if there == "0" {
			b.roles = append(b.roles, role)
		}
	}
	return nil
}

// dropAll removes the databases and roles that the benchmark created.
func (b *bench) dropAll(ctx context.Context) error {
	return withConn(ctx, b.admin, func(c *conn) error {
		for _, name := range b.created {
			if err := c.once(ctx, "drop database if exists "+name+" with (force)"); err != nil {
				return err
			}
		}
		for _, role := range b.roles {
			if err := c.once(ctx, "drop role if exists "+role); err != nil {
				return err
			}
		}
		return nil
	})
}

// inDatabase returns the DSN, a URL, with another database in it.
func inDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("-dsn %q is not a URL such as postgres://user@host/database", dsn)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// query returns the only value of a query's result, as text.
func query(ctx context.Context, dsn, sql string) (value string, err error) {
	err = withConn(ctx, dsn, func(c *conn) error {
		value, err = c.text(ctx, sql)
		return err
	})
	return value, err
}

func (c *conn) float(ctx context.Context, sql string) (float64, error) {
	s, err := c.text(ctx, sql)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(s, 64)
}
